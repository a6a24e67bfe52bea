import http.client
import urllib.request

import aiohttp
import anthropic
import boto3
import httpx
import orders_pb2_grpc
import psycopg
import pymysql
import redis
import requests
from botocore.config import Config
from openai import AsyncOpenAI, OpenAI

requests.get("https://example.com")  # found: no-timeout
requests.post("https://example.com", timeout=None)  # found: no-timeout
requests.get("https://example.com", timeout=60)  # found: one-timeout
urllib.request.urlopen("https://example.com")  # found: no-timeout
http.client.HTTPSConnection("example.com")  # found: no-timeout
httpx.get("https://example.com", timeout=None)  # found: no-timeout
httpx.AsyncClient(timeout=None)  # found: no-timeout
aiohttp.ClientTimeout(total=None)  # found: no-timeout
psycopg.connect("postgresql://db/orders")  # found: no-timeout
pymysql.connect(host="db")  # found: no-timeout
redis.Redis(host="cache")  # found: no-timeout
OpenAI(timeout=None)  # found: no-timeout
OpenAI()  # found: long-timeout
anthropic.Anthropic(max_retries=4)  # found: long-timeout
boto3.client("s3")  # found: long-timeout


class Client:
    def __init__(self):
        self.session = requests.Session()

    def get(self, url):
        return self.session.get(url)  # found: no-timeout


def call(channel, request):
    stub = orders_pb2_grpc.OrdersStub(channel)
    return stub.Create(request)  # found: no-timeout


def passed(session: requests.Session, url):
    return session.put(url)  # found: no-timeout


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────

requests.get("https://example.com", timeout=5)
requests.get("https://example.com", timeout=(3, 60))
requests.get("https://example.com", **options)
urllib.request.urlopen("https://example.com", None, 5)
httpx.get("https://example.com")
httpx.AsyncClient(timeout=httpx.Timeout(10, connect=3))
aiohttp.ClientTimeout(total=None, sock_read=30)
psycopg.connect("postgresql://db/orders?connect_timeout=3")
pymysql.connect(host="db", read_timeout=5)
redis.Redis(host="cache", socket_timeout=1)
redis.Redis(connection_pool=pool)
AsyncOpenAI(timeout=30)
boto3.client("s3", config=Config(connect_timeout=3, read_timeout=10))


def with_deadline(channel, request):
    return orders_pb2_grpc.OrdersStub(channel).Create(request, timeout=3)


def local(requests):
    return requests.get("key")
