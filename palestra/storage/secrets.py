"""Keeps secrets out of a run's folder and off the screen.

It decides which URLs and options a config may contain, and removes secrets from texts (`redacted`). Options are an
allow-list: any option that is not known to be harmless is an error, which names the environment variable to use
instead. The lists come from the signatures of fsspec's own file systems, s3fs, botocore and paramiko, and from the
documentation of gcsfs, adlfs and webdav4.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from palestra.config import ConfigErrorItem

MAY_HOLD = "may contain a secret, which would be stored in the run's folder"

# ---- what a config may contain ------------------------------------------------------------------------

Harmless: TypeAlias = "Mapping[str, Harmless | None]"  # options by name; None: a plain value or a list of such


def _plain(names: str) -> dict[str, None]:
    return dict.fromkeys(names.split())


class _Backend(NamedTuple):
    """The schemes of a file system, its options that are no secrets, where secrets belong, and the user's option."""

    schemes: str
    harmless: Harmless
    secrets: str | None = None
    user: str | None = None


_EVERY = _plain("use_listings_cache listings_expiry_time max_paths")
_S3_CONFIG: Harmless = {
    **_plain(
        "region_name signature_version connect_timeout read_timeout parameter_validation max_pool_connections "
        "inject_host_prefix use_dualstack_endpoint use_fips_endpoint ignore_configured_endpoint_urls defaults_mode "
        "tcp_keepalive request_min_compression_size_bytes disable_request_compression request_checksum_calculation "
        "response_checksum_validation s3_disable_express_session_auth"
    ),
    "s3": _plain("addressing_style payload_signing_enabled use_accelerate_endpoint us_east_1_regional_endpoint"),
    "retries": _plain("total_max_attempts max_attempts mode"),
    "proxies": _plain("http https"),
}
_EVERY_BACKEND = (
    _Backend("file local", _plain("auto_mkdir")),
    _Backend(
        "s3 s3a",
        {
            **_plain(
                "anon endpoint_url use_ssl requester_pays default_block_size default_fill_cache default_cache_type "
                "version_aware cache_regions max_concurrency fixed_upload_size local_expiry_check profile"
            ),
            "client_kwargs": _plain("region_name api_version use_ssl verify endpoint_url"),
            "config_kwargs": _S3_CONFIG,
            "s3_additional_kwargs": _plain("ACL StorageClass ServerSideEncryption BucketKeyEnabled"),
        },
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or ~/.aws/credentials",
    ),
    _Backend(
        "sftp ssh",
        _plain(
            "username key_filename allow_agent look_for_keys host_key_policy compress timeout banner_timeout "
            "auth_timeout channel_timeout temppath"
        ),
        "an SSH agent, or a key file (key_filename, ~/.ssh)",
        "username",
    ),
    _Backend(
        "gs gcs",
        _plain(
            "project access block_size consistency cache_timeout requests_timeout requester_pays timeout endpoint_url "
            "default_location version_aware"
        ),
        "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
    ),
    _Backend(
        "abfs az",
        _plain(
            "account_name account_host anon location_mode blocksize socket_timeout connection_timeout read_timeout "
            "default_fill_cache default_cache_type version_aware assume_container_exists max_concurrency"
        ),
        "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING",
        "account_name",
    ),
    _Backend("http https", _plain("simple_links block_size same_scheme size_policy cache_type encoded")),
    _Backend("hdfs arrow_hdfs", _plain("user replication"), "a Kerberos ticket (kinit)", "user"),
    _Backend("webhdfs", _plain("user kerberos use_https session_verify"), "a Kerberos ticket (kinit)", "user"),
    _Backend("ftp", _plain("username block_size tempdir timeout encoding tls"), user="username"),
    _Backend("webdav", _plain("base_url timeout verify chunk_size retry http2")),
    _Backend(
        "smb",
        _plain(
            "username timeout encrypt share_access register_session_retries register_session_retry_wait "
            "register_session_retry_factor auto_mkdir"
        ),
        user="username",
    ),
    _Backend("hf", _plain("endpoint block_size"), "HF_TOKEN, or `hf auth login`"),
)
_BACKENDS = {scheme: backend for backend in _EVERY_BACKEND for scheme in backend.schemes.split()}
_ON_DISK = ("file", "local", "memory", "sqlite")  # paths there may hold an @

# As parts of a name, and as whole names. A max_token or an eos_token is one that models read.
_OF_MODELS = "".join(rf"(?<!{name}[_-])" for name in ["max", "min", "num", "stop", "start", "bos", "eos", "pad", "unk"])
_SECRET = (
    rf"(?:passw|passphrase|secret|{_OF_MODELS}token(?!s|i)|credential|signature|authorization|cookie"
    r"|connection[-_]?string|(?:api|access|account|private)[-_]?key)"
)
_SHORT_SECRET = r"(?:pwd|pass|sas|sig|auth|(?<!\.)key)"  # callbacks.0.key is a key of ours
_TOKEN = re.compile(  # OpenAI, AWS, GitHub, GitLab, Hugging Face, JSON web tokens, keys
    r"\bsk-[\w-]{16,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\b(?:gh[pousr]|github_pat|hf)_\w{20,}|\bglpat-[\w-]{20,}|\beyJ[\w-]+\.[\w-]+\.[\w-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*-----|.*)",
    re.DOTALL,
)
_ASSIGNED = re.compile(rf"(?:{_SECRET}[\w-]*|\b{_SHORT_SECRET})=", re.IGNORECASE)


def may_hold_secret(url: str) -> bool:
    """Whether a URL may contain a user, a token or a signature, percent-encoded or not.

    Signs are `user@`, a port that is no number, `?`, `#`, and names such as `sig=`, in every link of a chain of URLs
    (zip://run::s3://...).
    """
    text = _decoded(url)
    return bool(re.search("[?#]", text) or _ASSIGNED.search(text) or _TOKEN.search(text)) or any(
        _names_somebody(link) for link in _links(text)
    )


def may_hold_secret_beside_user(url: str) -> bool:
    """Whether a URL that may name a user, such as that of a database, may contain a secret besides the name.

    The name must be plain: no token, and without a password, also when it is percent-encoded.
    """
    scheme, slashes, rest = url.partition("://")
    user, _, host = rest.partition("@")
    name = _decoded(user)
    is_name = re.fullmatch(r"[\w.+@-]+", name) and not _TOKEN.search(name)
    return may_hold_secret(f"{scheme}{slashes}{host}" if is_name and host else url)


def _names_somebody(url: str) -> bool:
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return re.search(":[^@]*@", url) is not None
    authority = re.split(r"[/\\]", rest)[0]
    _, colon, port = authority.rpartition("]")[2].partition(":")
    return "@" in (authority if scheme.lower() in _ON_DISK else rest) or bool(colon and not port.isdigit())


def _decoded(text: str) -> str:
    while (once := unquote(text)) != text:
        text = once
    return text


def where_secrets_lie(url: str, option: str = "<OPTION>") -> str:
    """Say where the secrets of a URL's file system belong, for an error message."""
    scheme, backend = _backend(url)
    variables = f"FSSPEC_{scheme.upper()}_"
    own = "" if backend.secrets is None else f"{backend.secrets}; or "
    return f"expected secrets in {own}the environment variable {variables}{option.upper()}"


def where_users_stand(url: str) -> str:
    """Say where the user's name belongs: in an option of the config, not in the URL, where it may be a token."""
    scheme, backend = _backend(url)
    if backend.user is None:
        return ""
    return f"; the user in the option {backend.user!r}, or in FSSPEC_{scheme.upper()}_{backend.user.upper()}"


def _backend(url: str) -> tuple[str, _Backend]:
    """The scheme of the last link of a URL, and its file system."""
    scheme = _links(url)[-1].partition("://")[0].lower()
    return scheme, _BACKENDS.get(scheme, _Backend(scheme, {}))


def _links(url: str) -> list[str]:
    return re.split(r"::(?=[\w+.-]+://)", url)


def option_errors(url: str, options: Mapping[str, Any]) -> Iterator[ConfigErrorItem]:
    """An error for each option of a URL's file system that is not known to be harmless, with its path below them."""
    harmless = {**_EVERY, **_backend(url)[1].harmless}
    for path, why in _faults(options, harmless, ""):
        known = f"known to be harmless: {', '.join(harmless)}"
        yield ConfigErrorItem(path, why or f"{MAY_HOLD}; {where_secrets_lie(url, path.split('.')[0])}; {known}")


def _faults(options: Mapping[Any, Any], harmless: Harmless, path: str) -> Iterator[tuple[str, str]]:
    """The paths of the options that may hold a secret, each with its fault if it has another one, else with ""."""
    for key, value in options.items():
        below, inner = f"{path}.{key}".lstrip("."), harmless.get(key)
        if key not in harmless:
            yield below, ""
        elif inner is not None and isinstance(value, Mapping):
            yield from _faults(value, inner, below)
        elif inner is not None:
            yield below, f"expected a mapping with keys among {', '.join(inner)}, got {type(value).__name__}"
        else:
            for item in value if isinstance(value, list) else [value]:
                if not isinstance(item, str | int | float | None):
                    got = type(item).__name__
                    yield below, f"expected a string, a number, true, false, null, or a list of these, got {got}"
                elif isinstance(item, str) and may_hold_secret(item):
                    yield below, ""


# ---- what may be displayed and stored -------------------------------------------------------------------------

_START = r"(?:(?<![\w-])|(?<=3F)|(?<=26)|(?<=23)|(?<=3B))"  # of a name; percent-encoded: after ? & # ;
_NAME = rf"(?:[\w-]{{0,40}}{_SECRET}[\w-]*|{_START}{_SHORT_SECRET}(?![\w-]))"
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s&,;'"<>)\]}]+)"""
# Words with which an explanation begins, as in "token: expected a text": they are no secrets.
_SAYS = (
    r"(?!(?:an?|are|cannot|expected|extra|field|got|has|input|invalid|is|it|may|missing|must|no|none|not|null|required"
    r"|should|the|this|unexpected|unknown|unrecognized|unsupported|value)(?![\w-]))"
)
_EQUALS = r"(?:=|%(?:25)*3D)"
_NOT_ON_DISK = "".join(f"(?<!{scheme})" for scheme in _ON_DISK)
_HIDDEN = "***"


def _hide(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """A rule that hides a match except for its group `kept`."""
    return re.compile(pattern, flags)


_RULES = [
    _TOKEN,
    # headers, to the end of the line or of the quoted text
    _hide(
        r"""(?P<kept>(?<![\w.])(?:proxy-)?authorization\b['"]?\s*[:=]\s*)(?![\s*])(?:b?"[^"\n]*"|b?'[^'\n]*'|[^'"\n]+)"""
    ),
    _hide(r"""(?P<kept>(?<![\w.])(?:set-)?cookie['"]?\s*:\s*)(?![\s*])(?:b?"[^"\n]*"|b?'[^'\n]*'|[^'"\n]+)"""),
    _hide(r"\b(?P<kept>bearer\s+)(?!(?:authentication|authorization|keys?|tokens?)\b)[\w.~+/=-]+"),
    _hide(r"\b(?P<kept>Basic\s+)(?=\S*[0-9A-Z=])[\w+/=-]{6,}", re.NOFLAG),
    # the user of a URL, then its query and fragment; the query of a bare path, too
    _hide(rf"""(?P<kept>{_NOT_ON_DISK}://|%(?:25)*3A%(?:25)*2F%(?:25)*2F)[^\s'"<>@]*?(?=@|%(?:25)*40)"""),
    _hide(r"""(?P<kept>://[^\s'"<>?#]*[?#])[^\s'"<>)]+"""),
    _hide(r"""(?P<kept>(?<=[\w/])(?:\?|%(?:25)*3F))(?=[^\s'"<>]*(?:=|%(?:25)*3D))[^\s'"<>)]+"""),
    # name=value (palestra's own messages contain "key=value"), 'name': value, name: value
    _hide(rf"(?P<kept>{_NAME}\s*{_EQUALS}\s*)(?!value\b){_VALUE}"),
    _hide(rf"""(?P<kept>["']{_NAME}["']\s*:\s*)b?{_VALUE}"""),
    _hide(rf"(?P<kept>(?<![\w.-])[\w-]{{0,40}}{_SECRET}[\w-]*:\s+){_SAYS}{_VALUE}"),
]
_SECRET_VARIABLE = re.compile(rf"{_SECRET}|(?:^|_){_SHORT_SECRET}$", re.IGNORECASE)
_NAMES_A_FILE = re.compile(r"(?:_FILE|_PATH|_DIR|_SOCK)$", re.IGNORECASE)
_MIN_LENGTH = 6  # of a value to hide: shorter ones occur in ordinary words


def redacted(text: str) -> str:
    """Replace everything in a text that may be a secret by `***`.

    These are users and queries of URLs, values of names such as token or Authorization, and the values of this
    process's secret environment variables and of fsspec's config.
    """
    for value in sorted(_known_secrets(), key=len, reverse=True):
        for form in (value, quote(value, safe=""), quote(value)):
            text = text.replace(form, _HIDDEN)
    for rule in _RULES:
        text = rule.sub(lambda found: found.groupdict().get("kept", "") + _HIDDEN, text)
    return text


def _known_secrets() -> set[str]:
    from fsspec.config import conf  # imported here because only error messages need it

    found = {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and not _NAMES_A_FILE.search(name) and not value.startswith("/")
    }
    for scheme, options in conf.items():
        for error in option_errors(f"{scheme}://", options):
            found |= set(_texts(reduce(lambda value, key: value[key], error.path.split("."), options)))
    return {value for value in found if len(value) >= _MIN_LENGTH}


def _texts(value: Any) -> Iterator[str]:
    """All texts in a tree of mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
