package boltfile_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/pkg/records/internal/boltfile"
)

func TestErrorOfTheSystemIsNoDamage(t *testing.T) {
	for _, err := range []error{
		syscall.ENOMEM, syscall.ENOLCK, os.NewSyscallError("flock", syscall.EINTR), &os.PathError{Err: syscall.EIO},
	} {
		if !boltfile.IsSystem(fmt.Errorf("open: %w", err)) {
			t.Errorf("IsSystem(%v) = false; want true", err)
		}
	}
}
