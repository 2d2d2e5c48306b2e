package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// Damage changes one bit of the value of a key in the file of a store, also of an open one, like a disk that fails. A
// second call repairs the value. It is for the tests of several packages.
func Damage(path string, key ...string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, k := range key {
		found := false
		for at := range content {
			const sum = 4 // bytes of the checksum, before the JSON of a value
			value := at + len(k)
			if !bytes.HasPrefix(content[at:], []byte(k)) || value+sum >= len(content) || content[value+sum] != '{' {
				continue
			}
			found = true
			if _, err := file.WriteAt([]byte{content[value] ^ 1}, int64(value)); err != nil {
				return err
			}
		}
		if !found {
			return fmt.Errorf("%s does not contain the key %q", path, k)
		}
	}
	return nil
}
