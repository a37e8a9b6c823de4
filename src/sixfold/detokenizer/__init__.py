"""Token ids -> text that is safe to send: whole characters only, and nothing that may turn out to be a stop string.

Runs in: API process, or the caller's own for `LLM`. Owns: the text state of each choice. May import: messages, errors.
Start reading at: detokenizer.py (one choice's text), then stop.py (stop strings), output.py (one request's choices).
"""

from sixfold.detokenizer.detokenizer import Detokenizer, StopMatch
from sixfold.detokenizer.output import ChoiceDelta, OutputProcessor, Usage
from sixfold.detokenizer.stop import StopFilter

__all__ = ["ChoiceDelta", "Detokenizer", "OutputProcessor", "StopFilter", "StopMatch", "Usage"]
