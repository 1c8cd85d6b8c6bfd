"""The plugin's routes as a panel asks for them, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend import application
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from tensorboard_plugin_tbnum import plugin

BASE = "/data/plugin/tbnum/"


class Panel:
    """The plugin's routes, behind TensorBoard's own routing and middleware."""

    def __init__(self, logdir: Path) -> None:
        self.plugin = plugin.TbnumPlugin(base_plugin.TBContext(logdir=str(logdir)))
        self.client = Client(application.TensorBoardWSGI([self.plugin]))

    def get(self, route: str, headers: Mapping[str, str] | None = None, **query: Any) -> TestResponse:
        # `from` is a keyword
        query = {name.rstrip("_"): value for name, value in query.items()}
        return self.client.get(BASE + route, query_string=query, headers=dict(headers or {}))

    def json(self, route: str, **query: Any) -> Any:
        response = self.get(route, **query)
        assert response.status_code == 200, response.get_data(as_text=True)
        assert response.mimetype == "application/json"
        return strict_json(response.data)

    def binary(self, route: str, **query: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        response = self.get(route, **query)
        assert response.status_code == 200, response.get_data(as_text=True)
        assert response.mimetype == "application/octet-stream"
        header, arrays = unpack(response.data)
        if route not in ("heatmap", "ridge", "overlay"):
            assert len({len(array) for array in arrays.values()}) == 1
        return header, arrays

    def refused(self, code: int, route: str, **query: Any) -> str:
        response = self.get(route, **query)
        assert response.status_code == code, response.get_data(as_text=True)
        assert response.mimetype == "application/json"
        assert set(response.json) == {"error"} and "ETag" not in response.headers
        return response.json["error"]


def strict_json(text: bytes) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A binary answer, read as http_api.md describes."""
    data = 4 + int.from_bytes(body[:4], "little")
    assert data % 8 == 0 and len(body) % 8 == 0
    header = strict_json(body[4:data])
    arrays = {}
    for entry in header["arrays"]:
        assert entry["offset"] % 8 == 0
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        arrays[entry["name"]] = np.frombuffer(body, dtype, entry["length"], data + entry["offset"])
    return header, arrays
