"""What the server tells about itself: where each process's time goes, and the metrics made of it.

Runs in: every process (the meter), API process (the metrics). Owns: a process's meter; histograms and counters of an
API process. May import: messages. Start reading at: sites.py.
"""
