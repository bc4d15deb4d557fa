"""qkv as tools of a language model: `qkv mcp` serves them over the Model Context Protocol.

`tools` has them as plain functions, without the protocol; `server` needs the extra `tools`.
"""
