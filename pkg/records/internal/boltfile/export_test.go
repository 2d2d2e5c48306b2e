package boltfile

// Hooks of the tests in boltfile_test.

func IsSystem(err error) bool { return isSystem(err) }
