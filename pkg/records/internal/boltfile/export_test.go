package boltfile

// Hooks for the tests in boltfile_test.

func IsSystem(err error) bool { return isSystem(err) }
