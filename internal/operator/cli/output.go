package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A Format is the format of an answer.
type Format string

// All formats; a table is for people, the others are for scripts.
const (
	AsTable Format = "table"
	AsJSON  Format = "json"
	AsYAML  Format = "yaml"
)

// String returns the name of the format.
func (f *Format) String() string { return string(*f) }

// Type returns the name of the type in --help.
func (*Format) Type() string { return "format" }

// Set sets the format by its name.
func (f *Format) Set(s string) error {
	switch Format(s) {
	case AsTable, AsJSON, AsYAML:
		*f = Format(s)
		return nil
	default:
		return errors.New("allowed are table, json and yaml")
	}
}

// An Output contains the flags about a command's output.
type Output struct {
	Format        Format
	wholeIDs      bool
	absoluteTimes bool
}

// OutputFlags gives a command the flags of an output.
func OutputFlags(cmd *cobra.Command) *Output {
	o := FormatFlag(cmd)
	cmd.Flags().BoolVar(&o.wholeIDs, "no-trunc", false, "print IDs whole, not their first 12 digits")
	cmd.Flags().BoolVar(&o.absoluteTimes, "absolute-times", false, "print times as dates, not as how long ago")
	return o
}

// FormatFlag adds only the flag for the format to a command.
func FormatFlag(cmd *cobra.Command) *Output {
	o := &Output{Format: AsTable}
	cmd.Flags().VarP(&o.Format, "output", "o", "how to print it: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return o
}

// View returns how the output shows an answer as text.
func (o *Output) View(c *Console) View {
	return View{Now: c.Now(), WholeIDs: o.wholeIDs, AbsoluteTimes: o.absoluteTimes}
}

// Print writes an answer to stdout; draw makes the text.
func (c *Console) Print(o *Output, m any, draw func(View, *Page)) error {
	var b []byte
	var err error
	switch o.Format {
	case AsJSON:
		b, err = JSON(m)
	case AsYAML:
		b, err = YAML(m)
	case AsTable:
		p := c.Page()
		draw(o.View(c), p)
		b = p.Take()
	}
	if err != nil {
		return err
	}
	return c.Emit(b)
}

// Emit writes to stdout. If stdout is closed, SIGPIPE has ended the process, as for any Unix program.
func (c *Console) Emit(b []byte) error {
	if _, err := c.Out.Write(b); err != nil {
		return program.Hintf("the output is incomplete", "write to stdout: %w", err)
	}
	return nil
}
