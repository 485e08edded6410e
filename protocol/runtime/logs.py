"""Structured logs with secrets redacted: JSON for machines, coloured text at a terminal.

structlog is imported when the first line is logged. Its import takes 0.15 CPU seconds, as much as a quick command of
`muster` has in total, and most commands log nothing.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import SecretBytes, SecretStr

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

REDACTED = "[redacted]"
"""Text that replaces a secret."""

_SECRET_NAME = re.compile(
    r"(secret|passw(or)?d|passphrase|private_?key|mnemonic|seed_phrase|token|api_?key|authorization|cookie"
    r"|x-muster-signature|credential)",
    re.IGNORECASE,
)
_HARMLESS_NAME = re.compile(
    r"(tokens|token_(count|address|id)|(max|prompt|output|new)_tokens?|tokens[_-]per[_-]second)$", re.IGNORECASE
)
_KEY_NAME = re.compile(r"(^|_)key$", re.IGNORECASE)
_BARE_KEY = re.compile(r"(0x)?[0-9a-fA-F]{64}")
_USER_INFO = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@")
_SIGNED_QUERY = re.compile(
    r"(?<=[?&])(X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-(?:Signature|Credential)|sig|signature|token|"
    r"access_token|AWSAccessKeyId)=[^&\s\"']+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_TOKEN = re.compile(r"\bmst_[0-9a-f]{8}_[A-Za-z0-9_-]{8,}")
_SERVICE = "muster-service"
"""Name of the log handler of a service that logs JSON."""
_DEEPEST = 6
"""Nesting depth at which values are no longer logged."""
_unconfigured = threading.Event()
"""Set if `configure_logs` was called before structlog was imported."""


class Logger:
    """A structlog logger: `_log.warning("event", field=value)`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        import structlog  # noqa: PLC0415 - see the module's docstring

        if _unconfigured.is_set():
            _configure_structlog()
        found: Callable[..., Any] = getattr(structlog.get_logger(self._name), method)  # noqa: TID251
        return found


def get_logger(name: str) -> Logger:
    """Returns the logger of a module; `name` is its `__name__`."""
    return Logger(name)


def configure_logs(
    *, level: str = "INFO", json: bool | None = None, stream: TextIO | None = None, service: bool = False
) -> None:
    """Sends all logs of the process and its libraries through one formatter to `stream`.

    Args:
        level: Lowest level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`.
        json: Whether each line is a JSON object. By default this is so unless `stream` is a terminal.
        stream: Stream that the logs are written to; standard error by default.
        service: Whether the process is a service. If it logs JSON, exceptions that end the process or a thread are
            logged too, and `logs_json_only` returns True.
    """
    stream = sys.stderr if stream is None else stream
    as_json = not stream.isatty() if json is None else json
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_LineFormatter(as_json=as_json))
    if service and as_json:
        handler.set_name(_SERVICE)
        sys.excepthook = _log_exception
        threading.excepthook = _log_exception_of_thread
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for library in list(root.manager.loggerDict.values()):
        if isinstance(library, logging.Logger) and any(map(_writes_to_a_console, library.handlers)):
            library.handlers = [handler for handler in library.handlers if not _writes_to_a_console(handler)]
            library.propagate = True
    for name in ("httpx", "httpcore", "web3", "urllib3"):  # at INFO they log every URL, with presigned queries
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    _unconfigured.set()
    if "structlog" in sys.modules:
        _configure_structlog()


def _configure_structlog() -> None:
    """Makes structlog send events to the handlers of `logging`."""
    import structlog  # noqa: PLC0415

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    _unconfigured.clear()


def _shared_processors() -> list[Processor]:
    """Returns the processors that add fields to events of structlog and to records of `logging`."""
    import structlog  # noqa: PLC0415

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


class _LineFormatter(logging.Formatter):
    """Formats log records as lines: of JSON, or of text for a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record."""
        return self._formatter.format(record)

    @cached_property
    def _formatter(self) -> logging.Formatter:
        import structlog  # noqa: PLC0415

        ending: list[Processor] = (
            [structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer(default=str)]
            if self._as_json
            else [redact, _without_controls, structlog.dev.ConsoleRenderer(exception_formatter=_redacted_traceback)]
        )
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_shared_processors(), structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )


def logs_json_only() -> bool:
    """Returns whether this process is a service whose whole output must be JSON lines."""
    return any(handler.name == _SERVICE for handler in logging.getLogger().handlers)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("uncaught-exception", exc_info=(kind, error, trace))


def _log_exception_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


def _writes_to_a_console(handler: logging.Handler) -> bool:
    """Returns whether a handler writes to standard output or standard error.

    Libraries such as uvicorn and transformers install such handlers.
    """
    return type(handler) is logging.StreamHandler and handler.stream in {sys.stdout, sys.stderr, sys.__stderr__}


def printable(text: str) -> str:
    """Replaces control characters, because terminals interpret them and much text comes from untrusted parties."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def _without_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Makes texts printable; a structlog processor. structlog escapes only texts that contain white space or quotes."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Redacts secrets in a log event, at any depth; a structlog processor."""
    for name, value in list(event.items()):
        event[name] = redacted(value, name=name)
    return event


def redacted(value: object, *, name: str = "", depth: int = 0) -> object:  # noqa: PLR0911 - one line per kind of value
    """Returns the value with all secrets replaced.

    A value is redacted entirely if its name is that of a secret, such as `password`. If its name ends in `key`, it is
    redacted only if it looks like a private key (64 hex digits). In all other text, passwords in URLs, presigned
    queries and bearer tokens are redacted.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (SecretStr, SecretBytes)) or _names_a_secret(name):
        return REDACTED
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return _redacted_inside(value, name, depth + 1) if depth < _DEEPEST else "..."
    if _KEY_NAME.search(name) and _BARE_KEY.fullmatch(str(value)):
        return REDACTED
    return redacted_text(str(value))


def _redacted_inside(value: Mapping[object, object] | Iterable[object], name: str, depth: int) -> object:
    if isinstance(value, Mapping):
        return {str(key): redacted(item, name=str(key), depth=depth) for key, item in value.items()}
    return [redacted(item, name=name, depth=depth) for item in value]


def redacted_text(text: str) -> str:
    """Redacts passwords in URLs, presigned queries and tokens in a text."""
    text = _USER_INFO.sub(f"{REDACTED}@", text)
    text = _SIGNED_QUERY.sub(lambda match: f"{match[1]}={REDACTED}", text)
    text = _BEARER.sub(lambda match: f"{match[1]} {REDACTED}", text)
    return _TOKEN.sub(REDACTED, text)


def _names_a_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def _redacted_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    stream.write("\n" + printable(redacted_text("".join(traceback.format_exception(*exc_info)))))
