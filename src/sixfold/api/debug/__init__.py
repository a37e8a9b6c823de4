"""What operators look at while the server runs: all of scope admin where there are keys, none of it changes anything.

Runs in: API process. Start reading at: feed.py.
"""
