"""Count and time what runs: `qkv.cost.watch`, `Machine.measure`, `qkv.cost.audit`."""
