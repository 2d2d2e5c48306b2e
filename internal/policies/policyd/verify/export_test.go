package verify

// IsTimestamp is exported for a test of what costs nothing but time.
func IsTimestamp(data []byte) (bool, error) { return isTimestamp(data) }
