"""The audio of a call: RTP and RTCP, reordering and concealment, Opus, the play queue, the 20 ms ticker.

`stream.AudioStream` is what a session uses. Only `ticker` knows asyncio; all else is bytes and times in, bytes out.
"""
