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
    environment: str = ""
    """The environment variable that changes the attempts."""


def _llm(library: str, label: str, timeout: float = 600.0) -> ClientDefaults:
    retried = "connection errors, timeouts, 408, 409, 429 and 5xx"
    return ClientDefaults(library, label, 3.0, "max_retries", retried, timeout, ("timeout", "http_client"))


_OPENAI = _llm("openai", "the OpenAI client")
_ANTHROPIC = _llm("anthropic", "the Anthropic client")
_GROQ = _llm("groq", "the Groq client", 60.0)
_TOGETHER = _llm("together", "the Together client", 60.0)
_LITELLM = ClientDefaults(
    library="litellm",
    label="LiteLLM",
    attempts=3.0,
    retries_parameter="num_retries",
    retried="what the provider's client retries",
    timeout=600.0,
    timeout_parameters=("timeout", "request_timeout"),
)
_AWS = ClientDefaults(
    library="botocore",
    label="boto3",
    attempts=3.0,
    retried="throttling, 5xx and connection errors (5 attempts in the legacy mode of older versions)",
    timeout=60.0,
    timeout_parameters=("config",),
    environment="AWS_MAX_ATTEMPTS, AWS_RETRY_MODE",
)
_REDIS = ClientDefaults(
    library="redis",
    label="redis-py",
    attempts=4.0,
    retries_parameter="retry",
    retried="connection errors and timeouts (3 retries in versions 6 and 7, 10 in version 8)",
    timeout_parameters=("socket_timeout", "connection_pool"),
)
_ELASTICSEARCH = ClientDefaults(
    library="elasticsearch",
    label="the Elasticsearch client",
    attempts=4.0,
    retries_parameter="max_retries",
    retried="connection errors, 429, 502, 503 and 504",
    timeout=10.0,
    timeout_parameters=("timeout", "request_timeout"),
)
_OPENSEARCH = ClientDefaults(
    library="opensearch",
    label="the OpenSearch client",
    attempts=4.0,
    retries_parameter="max_retries",
    retried="connection errors, 502, 503 and 504",
    timeout=10.0,
    timeout_parameters=("timeout",),
)
_AZURE = ClientDefaults(
    library="azure",
    label="the Azure SDK",
    attempts=11.0,
    retries_parameter="retry_total",
    retried="408, 429, 5xx and connection errors",
    timeout=300.0,
    timeout_parameters=("read_timeout",),
)
_SLACK = ClientDefaults(
    library="slack",
    label="slack_sdk",
    attempts=2.0,
    retried="connection errors",
    timeout=30.0,
    timeout_parameters=("timeout",),
)
_STRIPE = ClientDefaults(
    library="stripe",
    label="the Stripe client",
    attempts=3.0,
    retries_parameter="max_network_retries",
    retried="connection errors, 409 and 5xx",
    timeout=80.0,
    timeout_parameters=("http_client",),
)
_PYMONGO = ClientDefaults(
    library="pymongo",
    label="PyMongo",
    attempts=2.0,
    retried="network errors, once (retryReads, retryWrites)",
    timeout_parameters=("socketTimeoutMS", "timeoutMS"),
)
_URLLIB3 = ClientDefaults(
    library="urllib3",
    label="urllib3",
    attempts=4.0,
    retries_parameter="retries",
    retried="connection errors and redirects (idempotent methods for read errors)",
    timeout_parameters=("timeout",),
)


def _made_by(owner: str, names: str, defaults: ClientDefaults) -> dict[str, ClientDefaults]:
    """Return the defaults of several classes or factories of one module or object."""
    return {f"{owner}.{name}": defaults for name in names.split()}


_OPENAI_CLIENTS = "OpenAI AsyncOpenAI AzureOpenAI AsyncAzureOpenAI Client AsyncClient"
_ANTHROPIC_CLIENTS = (
    "Anthropic AsyncAnthropic AnthropicBedrock AsyncAnthropicBedrock AnthropicVertex AsyncAnthropicVertex Client"
)
_LITELLM_CALLS = "completion acompletion embedding aembedding text_completion atext_completion"
_AWS_OWNERS = (
    "boto3", "boto3.Session()", "boto3.session.Session()", "aioboto3.Session()",
    "botocore.session.Session()", "botocore.session.get_session()", "aiobotocore.session.get_session()",
)  # fmt: skip

CLIENTS: dict[str, ClientDefaults] = {
    **_made_by("openai", _OPENAI_CLIENTS, _OPENAI),
    **_made_by("anthropic", _ANTHROPIC_CLIENTS, _ANTHROPIC),
    **_made_by("groq", "Groq AsyncGroq", _GROQ),
    **_made_by("together", "Together AsyncTogether", _TOGETHER),
    **{
        f"langchain_openai.{name}": _llm("openai", f"LangChain's {name}")
        for name in ("ChatOpenAI", "AzureChatOpenAI", "OpenAIEmbeddings")
    },
    "langchain_anthropic.ChatAnthropic": _llm("anthropic", "LangChain's ChatAnthropic"),
    **_made_by("litellm", _LITELLM_CALLS, _LITELLM),
    **{f"{owner}.{name}": _AWS for owner in _AWS_OWNERS for name in ("client", "resource", "create_client")},
    **{
        f"{owner}.{name}": _REDIS
        for owner in ("redis", "redis.asyncio", "redis.client", "redis.asyncio.client")
        for name in ("Redis", "StrictRedis", "from_url", "Redis.from_url", "StrictRedis.from_url")
    },
    **_made_by("elasticsearch", "Elasticsearch AsyncElasticsearch", _ELASTICSEARCH),
    **_made_by("opensearchpy", "OpenSearch AsyncOpenSearch", _OPENSEARCH),
    **_made_by("azure.storage.blob", "BlobServiceClient ContainerClient BlobClient", _AZURE),
    **_made_by("azure", "storage.filedatalake.DataLakeServiceClient storage.queue.QueueServiceClient", _AZURE),
    **_made_by("azure", "keyvault.secrets.SecretClient data.tables.TableServiceClient", _AZURE),
    **_made_by("slack_sdk", "WebClient web.WebClient web.client.WebClient", _SLACK),
    "slack_sdk.web.async_client.AsyncWebClient": _SLACK,
    "stripe.StripeClient": _STRIPE,
    **_made_by("pymongo", "MongoClient AsyncMongoClient mongo_client.MongoClient", _PYMONGO),
    **_made_by("urllib3", "PoolManager ProxyManager HTTPConnectionPool HTTPSConnectionPool", _URLLIB3),
}
"""By the resolved name of the class or factory."""
