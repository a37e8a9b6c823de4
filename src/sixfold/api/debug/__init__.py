"""What operators look at while the server runs: all of scope admin where there are keys, none of it changes anything.

Runs in: API process. Owns: who watches. May import: all that the API may. Start reading at: feed.py, then waits.py and
requests.py.
"""
