"""What runs, counted and timed, above what it looks at: `qkv.cost.watch`, `Machine.measure`, `qkv.cost.audit`."""
