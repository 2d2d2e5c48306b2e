package main

import (
	"bytes"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pullgate/pullgate/internal/operator/cli"
)

// docsCommand writes the text of --help in other formats, for builders and packagers of pullgatectl.
func docsCommand(c *cli.Console) *cobra.Command {
	cmd := cli.Group("docs", "Write the manual of pullgatectl", "", docsManCommand(), docsMarkdownCommand(c))
	cmd.Hidden = true
	return cmd
}

func docsManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR [DOCS]",
		Short: "Write a manual page for each command into a directory, and those of pullgated from the folder docs",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			docs := ""
			if len(args) > 1 {
				docs = args[1]
			}
			return writeManual(documented(cmd), args[0], docs)
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

// documented returns the command tree for the manual: without completion, which --help describes for each shell, and
// without a line with the date of generation.
func documented(cmd *cobra.Command) *cobra.Command {
	root := cmd.Root()
	root.DisableAutoGenTag = true
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			root.RemoveCommand(c)
		}
	}
	return root
}
