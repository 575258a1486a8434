"""Engine cores: sessions, the requests that they carry, and what survives their loss."""
