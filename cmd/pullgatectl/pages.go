package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// mostOfPage is how many entries the daemon sends at a time at most.
const mostOfPage = 100

// limitFlag gives a command that lists something the flag that ends the list.
func limitFlag(cmd *cobra.Command) *int {
	var limit int
	cmd.Flags().IntVar(&limit, "limit", 0, "list `N` entries at most; 0 is all")
	return &limit
}

// pages asks for page after page until there are limit entries, or all. One page is asked for by the token of the one
// before and a size, and tells how many entries it has and the token of the next. That there are more than limit
// is said on stderr.
func (c *console) pages(limit int, ask func(token string, size int32) (int, string, error)) error {
	if limit < 0 {
		return misused("0 is all", "--limit %d: it is 0 or more", limit)
	}
	for token, all := "", 0; ; {
		size := mostOfPage
		if limit > 0 {
			size = min(size, limit-all)
		}
		n, next, err := ask(token, int32(size))
		if err != nil {
			return err
		}
		all += n
		switch {
		case next == "":
			return nil
		case next == token:
			return errors.New("pullgated gives the same page again and again")
		case limit > 0 && all >= limit:
			_, _ = fmt.Fprintf(c.err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", all)
			return nil
		}
		token = next
	}
}
