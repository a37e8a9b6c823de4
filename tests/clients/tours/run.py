"""One client's tour: every function of `NAME.py` is a part, and prints one line of JSON when it is over.

    ENVIRONMENT/bin/python tests/clients/tours/run.py NAME URL

Runs in the client's environment, where neither Sixfold nor pytest is.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import types

# Clients that look things up on the net, or report home, are told not to.
os.environ.update(
    ANONYMIZED_TELEMETRY="False",
    LANGCHAIN_TRACING_V2="false",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    LITELLM_TELEMETRY="False",
    OPENAI_API_KEY="none",
    ANTHROPIC_API_KEY="none",
)


def main(name: str, url: str) -> None:
    module = importlib.import_module(name)
    for part, function in vars(module).items():
        if isinstance(function, types.FunctionType) and function.__module__ == name and not part.startswith("_"):
            fault = None
            try:
                function(url)
            except Exception:  # noqa: BLE001  whatever it is, it is the part's result
                fault = traceback.format_exc()
            print(json.dumps({"part": part, "fault": fault}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
