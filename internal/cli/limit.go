package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// A Limit is the maximum number of entries in a list; 0 means all.
type Limit struct{ N int }

// LimitFlag adds the flag for the maximum number of entries to a command that prints a list.
func LimitFlag(cmd *cobra.Command) *Limit {
	var l Limit
	cmd.Flags().IntVar(&l.N, "limit", 0, "list `N` entries at most; 0 is all")
	return &l
}

// Check refuses a limit below 0.
func (l *Limit) Check() error {
	if l.N < 0 {
		return Misused("0 is all", "--limit %d: it is 0 or more", l.N)
	}
	return nil
}

// Cut prints on stderr that there are more entries than those in the list.
func (c *Console) Cut(next string, n int) {
	if next != "" {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", n)
	}
}
