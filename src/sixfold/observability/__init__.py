"""What the server tells about itself: the metrics of an API process, and the engine's counters beside them.

Runs in: API process. Owns: histograms and counters of its process. May import: messages.
Start reading at: metrics.py.
"""

from sixfold.observability.metrics import ApiMetrics

__all__ = ["ApiMetrics"]
