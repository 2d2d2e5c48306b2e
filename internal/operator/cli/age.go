package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

const day = 24 * time.Hour

// age returns a duration in the form of kubectl: 3d4h, 5m10s, 0s. A negative one is 0s, because the clocks of one node
// differ a little.
func age(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

var ageForm = regexp.MustCompile(`^(?:(\d{1,3})y)?(?:(\d{1,5})d)?([^yd]*)$`)

// ParseAge reads a positive duration with days and years: 30d, 1y, 3d4h, 90m.
func ParseAge(s string) (time.Duration, error) {
	part := ageForm.FindStringSubmatch(s)
	if part == nil {
		return 0, errAge(s)
	}
	years, _ := strconv.Atoi("0" + part[1])
	days, _ := strconv.Atoi("0" + part[2])
	var rest time.Duration
	if part[3] != "" {
		var err error
		if rest, err = time.ParseDuration(part[3]); err != nil || rest < 0 {
			return 0, errAge(s)
		}
	}
	all := time.Duration(365*years+days)*day + rest
	if all <= 0 {
		return 0, errAge(s)
	}
	return all, nil
}

func errAge(s string) error {
	return fmt.Errorf("%q is not an age; write 30d, 12h or 3d4h", s)
}

// Size returns a number of bytes in the largest unit that fits.
func Size(bytes int64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
