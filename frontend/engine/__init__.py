"""Engine cores: sessions, the requests that they carry, and recovery from their loss."""
