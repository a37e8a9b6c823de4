"""What operators ask about waits and requests. The fake engine has no other processes: there is little to tell."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from sixfold.api.debug import traces
from sixfold.errors import Overloaded
from sixfold.observability.sites import SITES

from .fake_engine import FakeEngine
from .test_keys import Keys, keys  # noqa: F401 - a fixture


def test_the_register_is_there_without_counts(serve: Any) -> None:
    target, _ = serve(FakeEngine())
    sites = target.get("/debug/waits").json["data"]
    assert {site["name"] for site in sites} == {site.name for site in SITES}
    fence = next(site for site in sites if site["name"] == "engine.fence")
    assert (fence["kind"], fence["component"]) == ("invariant", "engine") and fence["protects"] and fence["test"]
    assert "count" not in fence


def test_there_are_no_requests_to_show(serve: Any) -> None:
    target, _ = serve(FakeEngine())
    target.complete()
    assert target.get("/debug/requests").json == {"data": [], "object": "list"}
    answer = target.get("/debug/requests/nobody")
    assert (answer.status, answer.error["code"]) == (404, "not_found")


def test_only_admins_see_what_others_do(serve: Any, keys: Keys) -> None:  # noqa: F811
    target, _ = serve(api_key_file=str(keys.path))
    for path in ("/debug/waits", "/debug/requests", "/debug/requests/x"):
        answers = [target.get(path, **headers) for headers in ({}, keys.bearer("alice"), keys.bearer("root"))]
        assert [answer.status for answer in answers] == [401, 403, 404 if path.endswith("x") else 200]


def test_a_query_of_many_parameters_is_refused_by_name(serve: Any) -> None:
    target, _ = serve(FakeEngine())
    for path in ("/debug/trace", "/debug/live"):
        answer = target.get(f"{path}?{'&'.join('abcdefghij')}")
        assert answer.status == 400 and answer.error["param"] in ("query", "a"), path


@pytest.mark.parametrize("path", ["/debug/live?frames=1", "/debug/requests", "/debug/waits", "/debug/health"])
def test_another_sites_page_takes_no_watchers_place(serve: Any, path: str) -> None:
    target, _ = serve(FakeEngine())

    def status(**fetch: str) -> int:
        return int(target.get(path, **{f"Sec-Fetch-{name}": value for name, value in fetch.items()}).status)

    for site in ("cross-site", "same-site"):
        for dest in ("empty", "image", "iframe", "script"):
            assert status(Site=site, Dest=dest) == 403
        assert status(Site=site) == 403
        assert status(Site=site, Dest="document") == 200, "somebody follows a link"
    assert [status(), status(Site="same-origin", Dest="empty"), status(Site="none", Dest="document")] == [200] * 3
    assert target.get("/livez", **{"Sec-Fetch-Site": "cross-site"}).status == 200


def test_traces_under_way_are_few() -> None:
    call: Any = SimpleNamespace(context=SimpleNamespace(n_traces=0))
    with ExitStack() as stack:
        for _ in range(traces.MAX_AT_ONCE):
            stack.enter_context(traces._place(call))
        with pytest.raises(Overloaded), traces._place(call):
            pass
        assert call.context.n_traces == traces.MAX_AT_ONCE
    with traces._place(call):
        assert call.context.n_traces == 1
