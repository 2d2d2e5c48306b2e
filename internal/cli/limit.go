package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// A Limit is how many entries of a list are wanted; 0 is all.
type Limit struct{ N int }

// LimitFlag gives a command that lists something the flag that ends the list.
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

// Cut says on stderr that there is more than what is listed.
func (c *Console) Cut(next string, n int) {
	if next != "" {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", n)
	}
}
