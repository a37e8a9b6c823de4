"""OpenAI's Responses API: typed items in, typed items out, and answers that are kept to be continued by their id."""
