"""Which endpoints embed and rank memories, as configured."""

from __future__ import annotations

from accordion.core.ports import Route
from accordion.models.embedding_endpoint import Endpoint, Endpoints
from accordion.settings import Settings
from accordion.settings.asking import AskedModel
from accordion.wiring.tables import routes


def endpoints(settings: Settings) -> Endpoints:
    """The endpoints of the `memory` section; of what it does not name, none."""
    embeddings, rerank = settings.memory.embeddings, settings.memory.rerank
    return Endpoints(
        _endpoint(settings, embeddings, embeddings.dimensions or 0) if embeddings is not None else None,
        _endpoint(settings, rerank) if rerank is not None else None,
    )


def _endpoint(settings: Settings, asked: AskedModel, dimensions: int = 0) -> Endpoint:
    if asked.api_base is not None:
        route = Route(asked.model, "openai", asked.api_base.rstrip("/"), api_key=asked.api_key.reveal())
    else:
        # `check` has seen to it that there is one of this name.
        route = routes(settings).models[asked.model]
    headers = [(name.lower().encode(), value.encode()) for name, value in route.extra_headers]
    if route.api_key:
        headers.append((b"authorization", f"Bearer {route.api_key}".encode()))
    return Endpoint(
        route.model or asked.model,
        route.base_url,
        tuple(headers),
        asked.timeout_seconds,
        asked.max_characters,
        dimensions,
    )
