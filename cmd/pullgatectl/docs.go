package main

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pullgate/pullgate/internal/cli"
)

// docsCommand writes what --help says in other forms. It is for those who build and package pullgatectl.
func docsCommand(c *cli.Console) *cobra.Command {
	cmd := cli.Group("docs", "Write the manual of pullgatectl", "", docsManCommand(), docsMarkdownCommand(c))
	cmd.Hidden = true
	return cmd
}

func docsManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write a manual page for each command into a directory",
		Args:  cli.OneArgument("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are for everybody
				return err
			}
			// The date is that of the commit, and without one always the same: two builds of it are equal.
			day, err := time.Parse(time.RFC3339, date)
			if err != nil {
				day = time.Unix(0, 0)
			}
			day = day.UTC()
			header := &doc.GenManHeader{Section: "1", Date: &day, Source: "pullgate " + version, Manual: "pullgate"}
			return doc.GenManTree(documented(cmd), header, filepath.Clean(args[0]))
		},
	}
}

func docsMarkdownCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "markdown",
		Short: "Print the whole manual as Markdown",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var b bytes.Buffer
			if err := markdown(documented(cmd), &b); err != nil {
				return err
			}
			return c.Emit(b.Bytes())
		},
	}
}

func markdown(cmd *cobra.Command, b *bytes.Buffer) error {
	if err := doc.GenMarkdownCustom(cmd, b, func(file string) string {
		return "#" + filepath.Base(file[:len(file)-len(filepath.Ext(file))])
	}); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := markdown(sub, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// documented is the tree as the manual has it, without a line that says when it was made.
func documented(cmd *cobra.Command) *cobra.Command {
	root := cmd.Root()
	root.DisableAutoGenTag = true
	return root
}
