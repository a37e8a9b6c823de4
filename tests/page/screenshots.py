"""Pictures of the page, for people to look at.

    python -m tests.page.screenshots --out DIR [--model smollm2] [--only anatomy] [--size wide]

Each view in both themes, and at the width of a phone. With a model it is that model's answers that are seen; without
one they are scripted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.serving import Server

from .browser import busy, chromium

SIZES = {"wide": (1280, 760), "phone": (360, 740)}
TALL = 2010
"""Pixels that the whole anatomy takes on a wide screen."""
QUESTION = "Write the first two sentences of a story about a lighthouse."
ANSWER = [
    *(
        "A",
        " model",
        " reads",
        " its",
        " prompt",
        " once",
        " and",
        " keeps",
        " what",
        " it",
        " has",
        " computed",
        ".\n",
    ),
    *("```python\n", "cache", " =", " {}", "\n", "```\n", "Each", " new", " token", " then", " needs", " one", " step"),
]
TOPICS = ["rivers", "trains", "bread", "the moon", "glass", "salt", "wind", "paper", "clocks", "ice", "maps", "bees"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--only", default="", help="chat, anatomy or health")
    parser.add_argument("--size", default="", choices=["", *SIZES])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        script = Path(folder, "script.json")
        script.write_text(json.dumps({"tokens": [t for t in dict.fromkeys(ANSWER)], "step_ms": 25}))
        arguments = [args.model] if args.model else ["scripted", "--script", str(script)]
        with Server(*arguments, "--num-kv-blocks", "352", "--max-num-seqs", "12") as server:
            for theme in ("light", "dark"):
                for size in [args.size] if args.size else SIZES:
                    width, height = SIZES[size]
                    context = browser.new_context(
                        viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=1
                    )
                    page = context.new_page()
                    page.on("console", lambda message: print("console:", message.text))
                    page.on("pageerror", lambda error: print("page error:", error))
                    for view in ("chat", "anatomy", "health"):
                        if args.only in ("", view):
                            tall = view == "anatomy" and size == "wide"
                            page.set_viewport_size({"width": width, "height": TALL if tall else height})
                            take(server, page, view, scripted=not args.model)
                            page.screenshot(path=args.out / f"{view}-{theme}-{size}.png", full_page=size == "phone")
                    context.close()


def take(server: Server, page: Any, view: str, *, scripted: bool) -> None:
    """Bring a view into a state that is worth a picture."""
    if view == "chat":
        chat(server, page, scripted)
    elif view == "anatomy":
        script = {"script": ["x"] * 900} if scripted else {}
        bodies = [
            {
                "messages": [{"role": "user", "content": f"Tell me a long story about {topic}. " * (3 + 4 * (i % 4))}],
                "max_tokens": 150 + 50 * (i % 5),
                "ignore_eos": True,
                **script,
            }
            for i, topic in enumerate(TOPICS + TOPICS[:4])
        ]
        page.goto(f"{server.url}/#anatomy")
        # Some come earlier than the others: half a minute is seen, and blocks that have been left.
        with busy(server, [{**body, "max_tokens": 90} for body in bodies[:5]]):
            time.sleep(9)
        with busy(server, bodies[5:9]), busy(server, bodies[2:4]):
            time.sleep(5)
        with busy(server, bodies):
            page.locator(".requests tbody tr").nth(10).wait_for()
            time.sleep(2.5)
            page.locator(".requests tbody tr", has_text="writes").nth(2).locator("button").click()
            time.sleep(0.8)
            page.evaluate("document.querySelector('main').scrollTo(0, 0)")
            page.screenshot()  # the first one takes long; the caller's shows the state now
            return
    else:
        page.goto(f"{server.url}/#health")
        page.locator(".facts").nth(3).wait_for()


def chat(server: Server, page: Any, scripted: bool) -> None:
    page.goto(f"{server.url}/#chat")
    if scripted:
        page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=with_script(route.request)))
    if page.get_by_label("Temperature").is_visible():
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Longest answer").fill("160")
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator("#regenerate").wait_for(timeout=60_000)
    width = page.viewport_size["width"]
    if scripted:
        page.get_by_role("button", name="Show tokens").click()
    # In the last line, so that what could have stood there hides nothing of the answer.
    unsure = [one for one in page.locator(".token:is(.p0, .p1, .p2)").all() if one.bounding_box()["x"] < width / 2]
    (unsure[-1] if unsure else page.locator(".token").nth(6)).hover()


def with_script(request: Any) -> str:
    return json.dumps({**json.loads(request.post_data), "script": ANSWER})


if __name__ == "__main__":
    main()
