package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// A limit is how many entries of a list are wanted; 0 is all.
type limit struct{ n int }

// limitFlag gives a command that lists something the flag that ends the list.
func limitFlag(cmd *cobra.Command) *limit {
	var l limit
	cmd.Flags().IntVar(&l.n, "limit", 0, "list `N` entries at most; 0 is all")
	return &l
}

func (l *limit) check() error {
	if l.n < 0 {
		return misused("0 is all", "--limit %d: it is 0 or more", l.n)
	}
	return nil
}

// cut says on stderr that there is more than what is listed.
func (c *console) cut(next string, n int) {
	if next != "" {
		_, _ = fmt.Fprintf(c.err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", n)
	}
}
