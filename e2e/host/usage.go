package host

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// A Usage is what a process has used so far.
type Usage struct {
	Resident  int // bytes of memory
	Anonymous int // of these, those that are not of a file
	Peak      int // the most that Resident was
	Processor time.Duration
}

// UsageOf reads the usage of a process that runs.
func UsageOf(pid int) (u Usage, err error) {
	defer Catch(&err)
	status := Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))
	stat := Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))
	for field, bytes := range map[string]*int{"VmRSS:": &u.Resident, "RssAnon:": &u.Anonymous, "VmHWM:": &u.Peak} {
		_, rest, _ := strings.Cut(string(status), "\n"+field)
		if _, err := fmt.Sscan(rest, bytes); err != nil {
			return u, fmt.Errorf("%s of process %d: %w", field, pid, err)
		}
		*bytes <<= 10
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name can have spaces
	var user, system int64
	if fields := strings.Fields(rest); len(fields) > 12 {
		_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	}
	u.Processor = time.Duration(user+system) * 10 * time.Millisecond
	return u, err
}
