"""Audio of a call: Opus, RTP, RTCP, reordering and pacing."""
