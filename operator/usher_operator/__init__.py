"""The operator: turns RelayPool and TransceiverPool resources into ordinary workloads, and hands out ids and keys."""
