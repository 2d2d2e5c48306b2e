package output

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// Age says how long ago something was, in the two largest units that matter: 3d4h, 5m10s, 0s. What lies ahead is
// 0s: clocks of one node differ by that much.
func Age(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{365 * day, "y"}, {day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	d = d.Truncate(time.Second)
	for i, u := range units {
		if d < u.size {
			continue
		}
		text := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				text += strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return text
	}
	return "0s"
}

// ParseAge reads an age as Age writes it: 30d, 1y, 3d4h, 90m. It is more than none.
func ParseAge(s string) (time.Duration, error) {
	var all time.Duration
	rest := s
	for _, u := range []struct {
		size time.Duration
		name string
	}{{365 * day, "y"}, {day, "d"}} {
		n, after, found := strings.Cut(rest, u.name)
		if !found {
			continue
		}
		count, err := strconv.ParseUint(n, 10, 16)
		if err != nil {
			return 0, errAge(s)
		}
		all += time.Duration(count) * u.size
		rest = after
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, errAge(s)
		}
		all += d
	}
	if all <= 0 {
		return 0, errAge(s)
	}
	return all, nil
}

func errAge(s string) error {
	return fmt.Errorf("%q is no age; write 30d, 12h or 3d4h", s)
}

// Size says how many bytes, in the largest unit of which there is one.
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
