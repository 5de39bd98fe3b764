"""The backend `realtime`: each call is one WebSocket to a server of the Realtime protocol (docs/realtime.md)."""
