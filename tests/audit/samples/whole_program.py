import boto3
import tenacity

client = boto3.client("s3")  # found: default-retries
other = boto3.client("sqs")


@tenacity.retry(stop=tenacity.stop_after_attempt(3))  # found: no-budget
def load(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(3))
def store(): ...
