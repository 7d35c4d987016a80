"""Secrets stay out of a run's folder and off the screen: what a config may say of a place, and what libraries echo."""

import inspect
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from rich.console import Console

from palestra.config import ConfigError, check
from palestra.recording.display.display import Display, PlainDisplay
from palestra.recording.display.live import LiveDisplay
from palestra.recording.services import MlflowConfig
from palestra.run.mirror import MirrorConfig
from palestra.run.records import Feed
from palestra.run.remote import Remote, RemoteError
from palestra.storage.facts import run_facts
from palestra.storage.secrets import _BACKENDS, may_hold_secret, redacted
from palestra.sweeps.storages import DatabaseConfig

SECRET = "pa55-of-the-tests"


def mirror_errors(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with a mirror, by path."""
    numbers = {"attempts": 1, "first_wait_s": 0.0, "end_wait_s": 1.0}
    try:
        check({"url": url, "options": options, **numbers}, MirrorConfig)
    except ConfigError as error:
        found = {item.path: item.message for item in error.errors}
    else:
        found = {}
    assert SECRET not in str(found)
    return found


# ---- URLs ----------------------------------------------------------------------------------------------------

WITH_SECRETS = [
    f"sftp://{SECRET}@host/x",
    f"sftp://{SECRET}%40host/x",
    f"sftp://me:{SECRET}@host/x",
    f"sftp://me:{SECRET}/x@host/x",
    f"s3://AKIA:{SECRET}/bucket",
    f"https://host/x?sig={SECRET}",
    f"https://host/x?{SECRET}",
    f"https://host/x%3Fsig%3D{SECRET}",
    f"https://host/x%253Fsig%253D{SECRET}",
    f"https://host/x#token={SECRET}",
    f"https://host/x%23token={SECRET}",
    f"abfs://container/x;sig={SECRET}",
    f"s3://bucket/&X-Amz-Signature={SECRET}",
    f"zip://run::sftp://{SECRET}@host/run.zip",
    f"file://{SECRET}@host/x",
    "s3://bucket/ghp_0123456789012345678901234567890123",
]
WITHOUT = [
    "s3://bucket/runs/of mine",
    "s3://bucket/lr=0.1/design=3",
    "sftp://host:2222/home/me",
    "sftp://[::1]:2222/home/me",
    "file:///home/me@work/runs",
    "memory://mirrors",
    "sqlite:///mlflow.db",
    "zip://mine::file:///home/me@work/mirror.zip",
    "mlruns",
]


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_a_url_with_a_place_for_a_secret_is_refused_and_not_repeated(url: str) -> None:
    assert may_hold_secret(url)
    assert mirror_errors(url, {})["url"].startswith(
        "may contain a secret, which would be stored in the run's folder; expected "
    )
    experiment: dict[str, Any] = {"experiment": "e", "run_name": None, "tags": {}, "checkpoints": False}
    with pytest.raises(ConfigError, match=r"^tracking_uri: may contain a secret.*MLFLOW_TRACKING_PASSWORD") as caught:
        check({"name": "mlflow", "tracking_uri": url, **experiment}, MlflowConfig)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", WITHOUT)
def test_a_url_without_one_is_taken(url: str) -> None:
    assert not may_hold_secret(url)


def database_errors(url: str) -> dict[str, str]:
    """What is wrong with the database of a sweep, by path."""
    try:
        check({"name": "database", "url": url, "password_from": None, "study": "s"}, DatabaseConfig)
    except ConfigError as error:
        found = {item.path: item.message for item in error.errors}
    else:
        found = {}
    assert SECRET not in str(found)
    return found


@pytest.mark.parametrize("url", [url for url in WITH_SECRETS if url.startswith(("https", "sftp://me:"))])
def test_a_database_with_a_place_for_a_secret_is_refused_and_not_repeated(url: str) -> None:
    assert database_errors(url)["url"].startswith("expected a URL without a password or options, which would be stored")


@pytest.mark.parametrize(
    "user",
    [
        *(f"me%3A{SECRET}", f"me%253A{SECRET}", f"me:{SECRET}", f"me%2F%3A{SECRET}"),
        *(f"ghp_{'0' * 36}", f"github_pat_{'0' * 22}_{'a' * 59}", f"glpat-{'a1-_' * 5}", f"hf%5F{'a' * 30}"),
    ],
)
def test_the_user_of_a_database_is_a_plain_name(user: str) -> None:
    assert database_errors(f"postgresql://{user}@host/db")["url"].startswith("expected a URL without a password")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me@host:5432/db",
        "mysql://me%40tenant@host/db",
        "postgresql://host/db",
        "sqlite:////a@b/x.db",
    ],
)
def test_a_database_without_a_secret_is_taken(url: str) -> None:
    assert database_errors(url) == {}


@pytest.mark.parametrize("place", ["", "/", "/:memory:", "/x.db", "/./x.db", "host/x.db"])
@pytest.mark.parametrize("scheme", ["sqlite", "SQLite", "sqlite+pysqlite"])
def test_a_study_that_nobody_finds_again_is_refused(scheme: str, place: str) -> None:
    told = database_errors(f"{scheme}://{place}")["url"]
    assert told.startswith("expected a file by its full path, as sqlite:////home/me/study.db, got ")
    assert told.endswith("storage: {name: sqlite} keeps the study in the sweep's folder")


def test_a_user_is_told_where_to_stand() -> None:
    message = mirror_errors("sftp://me@host/x", {})["url"]
    assert (
        "an SSH agent, or a key file (key_filename, ~/.ssh); or the environment variable FSSPEC_SFTP_<OPTION>"
        in message
    )
    assert message.endswith("the user in the option 'username', or in FSSPEC_SFTP_USERNAME")
    assert mirror_errors("sftp://host/x", {"username": "me"}) == {}
    assert mirror_errors("abfs://container@account/x", {})["url"].endswith("FSSPEC_ABFS_ACCOUNT_NAME")


# ---- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "option"),
    [
        *[("sftp://host/x", name) for name in ("password", "pwd", "passphrase", "pkey", "sock", "auth_strategy")],
        *[("s3://bucket/x", name) for name in ("key", "secret", "token", "username", "password", "session")],
        *[("abfs://box/x", name) for name in ("sas", "sas_token", "account_key", "connection_string", "credential")],
        *[("https://host/x", name) for name in ("headers", "auth", "cookies", "client_kwargs")],
        *[("gs://bucket/x", name) for name in ("token", "session_kwargs")],
        *[("file:///x", "anything"), ("memory://x", "endpoint_url"), ("dropbox://x", "block_size")],
    ],
)
def test_an_option_that_is_not_known_to_be_harmless_is_refused_with_the_variable_to_use(url: str, option: str) -> None:
    scheme = url.partition("://")[0]
    [(path, message)] = mirror_errors(url, {option: SECRET}).items()
    assert path == f"options.{option}"
    assert f"environment variable FSSPEC_{scheme.upper()}_{option.upper()}; known to be harmless: " in message
    conf: dict[str, Any] = {}
    fsspec.config.set_conf_env(conf, {f"FSSPEC_{scheme.upper()}_{option.upper()}": SECRET})
    assert conf == {scheme: {option: SECRET}}  # which fsspec gives to the file system


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"client_kwargs": {"aws_secret_access_key": SECRET}}, "options.client_kwargs.aws_secret_access_key"),
        ({"config_kwargs": {"s3": {"whatever": SECRET}}}, "options.config_kwargs.s3.whatever"),
        ({"config_kwargs": {"proxies": {"https": f"me:{SECRET}@proxy"}}}, "options.config_kwargs.proxies.https"),
        ({"s3_additional_kwargs": {"SSECustomerKey": SECRET}}, "options.s3_additional_kwargs.SSECustomerKey"),
        ({"endpoint_url": f"https://{SECRET}@host"}, "options.endpoint_url"),
        ({"endpoint_url": f"https://host/?sig={SECRET}"}, "options.endpoint_url"),
        ({"endpoint_url": {"token": SECRET}}, "options.endpoint_url"),
        ({"endpoint_url": [{"token": SECRET}]}, "options.endpoint_url"),
        ({"client_kwargs": SECRET}, "options.client_kwargs"),
    ],
)
def test_what_lies_below_an_option_or_in_its_value_is_looked_at(options: dict[str, Any], path: str) -> None:
    assert list(mirror_errors("s3://bucket/x", options)) == [path]


def test_options_that_are_known_to_be_harmless_are_taken() -> None:
    s3 = {
        "anon": False,
        "endpoint_url": "https://host:9000",
        "client_kwargs": {"region_name": "eu-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"mode": "adaptive"}, "read_timeout": 60},
    }
    assert mirror_errors("s3://bucket/x", s3) == {}
    assert mirror_errors("sftp://host/x", {"key_filename": ["a", "b"], "allow_agent": True}) == {}
    assert mirror_errors("file:///x", {"auto_mkdir": True, "use_listings_cache": False}) == {}


@pytest.mark.parametrize("scheme", ["s3", "sftp", "ftp", "http", "file", "smb", "webhdfs", "hdfs"])
def test_every_option_in_the_lists_is_one_of_the_file_system(scheme: str) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("paramiko")
    known = set(parameters_of(scheme))
    assert set(_BACKENDS[scheme].harmless) - known == set()


def parameters_of(scheme: str) -> Iterator[str]:
    """The names of all parameters of a file system, by signature or source: smb's own package is not installed."""
    import paramiko
    from aiobotocore.session import AioSession
    from fsspec.registry import known_implementations

    if scheme == "smb":
        from importlib.util import find_spec

        spec = find_spec(known_implementations[scheme]["class"].rpartition(".")[0])
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin) as file:
            yield from (line.strip().partition("=")[0] for line in file)
        return
    yield from inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    if scheme == "sftp":
        yield from inspect.signature(paramiko.SSHClient.connect).parameters
        yield from ("temppath", "host_key_policy")
    if scheme == "s3":
        yield from inspect.signature(AioSession.__init__).parameters
        yield "profile"


def test_inner_options_of_s3_are_those_of_botocore() -> None:
    botocore_config = pytest.importorskip("botocore.config").Config
    from botocore.session import Session

    inner: Any = _BACKENDS["s3"].harmless
    assert set(inner["config_kwargs"]) <= set(botocore_config.OPTION_DEFAULTS)
    assert set(inner["client_kwargs"]) <= set(inspect.signature(Session.create_client).parameters)


# ---- what libraries echo -------------------------------------------------------------------------------------

ECHOES = [
    "403, url=URL('https://host/x?X-Amz-Signature={}&a=1')",
    "Max retries exceeded with url: /box/x?sv=2022&sig={} (Caused by NewConnectionError)",
    "Max retries exceeded with url: /box/x?code={}",
    "cannot open https://host/x#access_token={}",
    "sftp://me:{}@host/x: Authentication failed",
    "sftp://{}@host/x: Authentication failed",
    "postgresql://me:a/{}@host/db",
    "{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}",
    "{{'authorization': b'Basic {}'}}",
    "Authorization: AWS4-HMAC-SHA256 Credential=AK/2026/us-east-1/s3, SignedHeaders=host, Signature={}",
    '{{"x-amz-security-token": "{}", "host": "h"}}',
    "Cookie: a=b; session={}",
    "S3FileSystem(anon=False, key='AK', secret='{}')",
    "SSHClient.connect(password={}, port=22)",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    "password: {}",
    "Bearer {} is expired",
    "api_key: {} is invalid",
    "Incorrect access_token: '{}'",
    "the password: {}: not accepted",
    "auth_token: {}",
    "output.mirror.options.sas={}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n{}\n-----END OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", [SECRET, "a0%2Fb1%2Bc2", "eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl"])
@pytest.mark.parametrize("echo", ECHOES)
def test_what_a_library_echoes_is_shown_without_its_secret(echo: str, secret: str) -> None:
    for text in (echo.format(secret), f"first line\n{echo.format(secret)}\nlast line"):
        assert secret not in redacted(text)
        assert redacted(redacted(text)) == redacted(text)
    if "://" in echo or "url: /" in echo:
        for encoded in (quote(echo.format(secret), safe=""), quote(quote(echo.format(secret), safe=""), safe="")):
            assert quote(secret) not in redacted(encoded)


@pytest.mark.parametrize(
    "text",
    [
        "output.mirror.options.password: may contain a secret, which would be stored in the run's folder",
        "branch off: palestra branch CHECKPOINT key=value",
        "palestra train a.yml callbacks.0.key=learning_rate seed=3",
        "s3://bucket/run: writing run.json: PermissionError: Access Denied (attempt 2)",
        "file:///home/me@work/run: listing: NotADirectoryError: [Errno 20] Not a directory",
        "Bad authentication type; allowed types: ['publickey', 'password']",
        "Basic authentication failed for host:22",
        "no such key; did you mean 'x'?",
        "num_tokens=512, signal=15, design: 3, monkey: 4",
        "players.prover.sampling.max_token: no such key; did you mean 'max_tokens'?",
        "{'max_token': 'Unknown parameter', 'eos_token': '</s>', 'stop_token': 3}",
        "token: expected a text, got 3; password: must not be empty; api_key: Field required",
        "Unauthorized: a Bearer token is missing",
    ],
)
def test_what_holds_no_secret_is_shown_as_it_is(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("key", ["sk-proj-abcDEF_0123456789-xyz", "sk-ant-0123456789abcdef", "ghp_" + "0aB" * 12])
def test_a_key_is_hidden_wherever_it_stands(key: str) -> None:
    assert redacted(f"Incorrect API key provided: {key}. Try another.") == (
        "Incorrect API key provided: ***. Try another."
    )


def test_the_secrets_of_this_process_are_hidden_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_ACCESS_KEY", "k1/with+signs")
    monkeypatch.setenv("SOME_PASSWORD_FILE", "/home/me/password")
    monkeypatch.setenv("SOME_PASSWORD", "abc")  # so short that it stands everywhere
    monkeypatch.setitem(fsspec.config.conf, "sftp", {"username": "somebody", "password": SECRET})
    monkeypatch.setitem(fsspec.config.conf, "webdav", {"auth": ["me", "p4ssword"]})
    text = f"abc {SECRET}, k1/with+signs, k1%2Fwith%2Bsigns, p4ssword; somebody, /home/me/password"
    assert redacted(text) == "abc ***, ***, ***, ***; somebody, /home/me/password"


def test_an_error_of_a_place_is_redacted_and_brings_no_traceback_of_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(f"403 for https://host/x?sig={SECRET}, headers {{'Authorization': 'Bearer {SECRET}'}}")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refuse)
    with pytest.raises(RemoteError, match=r"^memory://x: reading a: OSError: 403 for https://host/x\?\*\*\*") as caught:
        Remote("memory://x", {}, 1, 0.0).read("a")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("kind", [Display, PlainDisplay, LiveDisplay])
def test_error_lines_of_every_display_are_redacted(kind: type[Any], capsys: pytest.CaptureFixture[str]) -> None:
    display = kind(Console(), is_ascii=True) if kind is LiveDisplay else kind(Console())
    display.error(f"recorder failed: https://host/x?sig={SECRET}")
    shown = capsys.readouterr().out
    assert "https://host/x?***" in shown
    assert SECRET not in shown


def test_what_a_recorder_raises_is_told_and_logged_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    feed = object.__new__(Feed)
    feed.name, feed._is_failing, feed._news = "mlflow", False, []
    try:
        raise ConnectionError(f"https://me:{SECRET}@host/api?token={SECRET}")
    except ConnectionError as error:
        with caplog.at_level(logging.DEBUG):
            feed._failed(error)
    assert feed._news == [
        "recorder mlflow failed: ConnectionError: https://***@host/api?***; it is tried again, training goes on"
    ]
    assert "Traceback" in caplog.text
    assert SECRET not in caplog.text.replace('raise ConnectionError(f"', "")


def test_the_command_in_run_json_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["script.py", f"--password={SECRET}", f"--url=s3://{SECRET}@host/x", "seed=3"])
    assert json.loads(json.dumps(run_facts()))["command"] == "script.py --password=*** --url=s3://***@host/x seed=3"
