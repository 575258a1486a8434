"""The worker's states: started, loaded, ready, asleep; its compute thread and its watch over the device."""
