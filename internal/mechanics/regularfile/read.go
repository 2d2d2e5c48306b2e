package regularfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrTooLarge is wrapped by the error about a file that is longer than the limit.
var ErrTooLarge = errors.New("too large")

// Read returns the content of a regular file of at most limit bytes; a longer one is [ErrTooLarge]. Anything else than a
// regular file is an error; it is never waited for.
func Read(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK the opening of a named pipe waits for a writer, for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	var content []byte
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(f, limit+1))
	}
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return content, nil
}
