package host_test

import (
	"os"
	"testing"

	"github.com/pullgate/pullgate/e2e/host"
)

func TestUsageOfThisProcess(t *testing.T) {
	u, err := host.UsageOf(os.Getpid())
	if err != nil || u.Anonymous == 0 || u.Resident <= u.Anonymous || u.Peak < u.Resident {
		t.Errorf("UsageOf = %+v, %v; want its memory, nil", u, err)
	}
}
