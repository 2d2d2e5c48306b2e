package boltfile

// Hooks of the tests in dbfile_test.

func IsSystem(err error) bool { return isSystem(err) }
