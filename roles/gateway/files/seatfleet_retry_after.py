"""A LiteLLM callback: the Retry-After of a seat that is being restarted reaches the caller.

LiteLLM 1.106.12 hands a backend's headers on under other names only (``llm_provider-retry-after``), which no client
reads. It runs this file beside its config.yaml, in its own Python.
"""

from __future__ import annotations

from typing import Any

from litellm.integrations.custom_logger import CustomLogger


class RetryAfter(CustomLogger):
    """Restores one header of failed requests."""

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,  # noqa: ANN401 - litellm's UserAPIKeyAuth, of no interest here
        traceback_str: str | None = None,
    ) -> None:
        """Put the header where the proxy takes a failure's headers from; other failures stay as they are."""
        upstream = getattr(original_exception, "litellm_response_headers", None) or {}
        seconds = upstream.get("retry-after")
        if seconds is not None and getattr(original_exception, "status_code", None) == 503:
            original_exception.headers = {"retry-after": str(seconds)}  # type: ignore[attr-defined]


handler = RetryAfter()
