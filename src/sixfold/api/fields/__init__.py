"""Fields that several endpoints share: their ranges, and what they mean for an execution request.

Runs in: API process. Owns: nothing. May import: what `api` may.
Start reading at: params.py, then structured_fields.py and tool_fields.py.
"""
