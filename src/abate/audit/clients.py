"""What clients of well-known services do by default: how often they try, how long they wait for an answer."""

from __future__ import annotations

import math

from abate.frozen import Frozen


class ClientDefaults(Frozen):
    """The defaults of one client class or factory."""

    library: str
    label: str
    attempts: float | None = 1.0
    """By default; None if only the time is bounded."""
    retries_parameter: str = ""
    """The parameter that sets the retries, attempts minus one."""
    retried: str = ""
    """What it retries by default."""
    timeout: float = math.inf
    """Seconds to wait for an answer; infinite if it waits for ever."""
    timeout_parameters: tuple[str, ...] = ()
    timeout_position: int | None = None
    environment: str = ""
    """The environment variable that changes the attempts."""


def _llm(library: str, label: str, timeout: float = 600.0) -> ClientDefaults:
    retried = "connection errors, timeouts, 408, 409, 429 and 5xx"
    return ClientDefaults(library, label, 3.0, "max_retries", retried, timeout, ("timeout", "http_client"))


_AWS = ClientDefaults(
    "botocore", "boto3", 3.0, "", "throttling, 5xx and connection errors (5 attempts in the legacy mode of older versions)",
    60.0, ("config",), None, "AWS_MAX_ATTEMPTS, AWS_RETRY_MODE",
)  # fmt: skip
_REDIS = ClientDefaults(
    "redis", "redis-py", 4.0, "retry", "connection errors and timeouts (3 retries in versions 6 and 7, 10 in version 8)",
    math.inf, ("socket_timeout", "connection_pool"), None, "",
)  # fmt: skip
_ELASTIC = ClientDefaults(
    "elasticsearch", "the Elasticsearch client", 4.0, "max_retries", "connection errors, 429, 502, 503 and 504", 10.0,
    ("timeout", "request_timeout"),
)  # fmt: skip
_AZURE = ClientDefaults(
    "azure", "the Azure SDK", 11.0, "retry_total", "408, 429, 5xx and connection errors", 300.0, ("read_timeout",)
)

CLIENTS: dict[str, ClientDefaults] = {
    **{f"openai.{name}": _llm("openai", "the OpenAI client") for name in ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI", "Client", "AsyncClient")},
    **{
        f"anthropic.{name}": _llm("anthropic", "the Anthropic client")
        for name in ("Anthropic", "AsyncAnthropic", "AnthropicBedrock", "AsyncAnthropicBedrock", "AnthropicVertex", "AsyncAnthropicVertex", "Client")
    },
    **{f"groq.{name}": _llm("groq", "the Groq client", 60.0) for name in ("Groq", "AsyncGroq")},
    **{f"together.{name}": _llm("together", "the Together client", 60.0) for name in ("Together", "AsyncTogether")},
    **{f"langchain_openai.{name}": _llm("openai", f"LangChain's {name}") for name in ("ChatOpenAI", "AzureChatOpenAI", "OpenAIEmbeddings")},
    "langchain_anthropic.ChatAnthropic": _llm("anthropic", "LangChain's ChatAnthropic"),
    **{
        f"litellm.{name}": ClientDefaults("litellm", "LiteLLM", 3.0, "num_retries", "what the provider's client retries", 600.0, ("timeout", "request_timeout"))
        for name in ("completion", "acompletion", "embedding", "aembedding", "text_completion", "atext_completion")
    },
    **{
        f"{owner}.{name}": _AWS
        for owner in ("boto3", "boto3.Session()", "boto3.session.Session()", "botocore.session.get_session()", "aioboto3.Session()",
                      "aiobotocore.session.get_session()", "botocore.session.Session()")
        for name in ("client", "resource", "create_client")
    },
    **{
        f"{owner}.{name}": _REDIS
        for owner in ("redis", "redis.asyncio", "redis.client", "redis.asyncio.client")
        for name in ("Redis", "StrictRedis", "from_url", "Redis.from_url", "StrictRedis.from_url")
    },
    **{f"elasticsearch.{name}": _ELASTIC for name in ("Elasticsearch", "AsyncElasticsearch")},
    **{
        f"opensearchpy.{name}": _ELASTIC.__class__("opensearch", "the OpenSearch client", 4.0, "max_retries", "connection errors, 502, 503 and 504", 10.0, ("timeout",))
        for name in ("OpenSearch", "AsyncOpenSearch")
    },
    **{
        f"azure.{name}": _AZURE
        for name in (
            "storage.blob.BlobServiceClient", "storage.blob.ContainerClient", "storage.blob.BlobClient", "keyvault.secrets.SecretClient",
            "storage.filedatalake.DataLakeServiceClient", "data.tables.TableServiceClient", "storage.queue.QueueServiceClient",
        )
    },
    **{
        f"slack_sdk.{name}": ClientDefaults("slack", "slack_sdk", 2.0, "", "connection errors", 30.0, ("timeout",))
        for name in ("WebClient", "web.WebClient", "web.async_client.AsyncWebClient", "web.client.WebClient")
    },
    "stripe.StripeClient": ClientDefaults("stripe", "the Stripe client", 3.0, "max_network_retries", "connection errors, 409 and 5xx", 80.0, ("http_client",)),
    **{
        f"pymongo.{name}": ClientDefaults("pymongo", "PyMongo", 2.0, "", "network errors, once (retryReads, retryWrites)", math.inf, ("socketTimeoutMS", "timeoutMS"))
        for name in ("MongoClient", "AsyncMongoClient", "mongo_client.MongoClient")
    },
    **{
        f"urllib3.{name}": ClientDefaults("urllib3", "urllib3", 4.0, "retries", "connection errors and redirects (idempotent methods for read errors)", math.inf, ("timeout",))
        for name in ("PoolManager", "ProxyManager", "HTTPConnectionPool", "HTTPSConnectionPool")
    },
}  # fmt: skip
"""By the resolved name of the class or factory."""
