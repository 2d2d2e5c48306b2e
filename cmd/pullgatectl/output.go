package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
)

// A format is how an answer is written.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
	asYAML  format = "yaml"
)

// String returns the name of the format.
func (f *format) String() string { return string(*f) }

// Type is what --help calls it.
func (*format) Type() string { return "format" }

// Set takes a format by its name.
func (f *format) Set(s string) error {
	switch format(s) {
	case asTable, asJSON, asYAML:
		*f = format(s)
		return nil
	default:
		return errors.New("allowed are table, json and yaml")
	}
}

// An output is what a command's flags say about how it prints.
type output struct {
	format        format
	wholeIDs      bool
	absoluteTimes bool
}

// outputFlags gives a command the flags of an output.
func outputFlags(cmd *cobra.Command) *output {
	o := formatFlag(cmd)
	cmd.Flags().BoolVar(&o.wholeIDs, "no-trunc", false, "print IDs whole, not their first 12 digits")
	cmd.Flags().BoolVar(&o.absoluteTimes, "absolute-times", false, "print times as dates, not as how long ago")
	return o
}

// formatFlag gives a command the one flag of an output that is about its format.
func formatFlag(cmd *cobra.Command) *output {
	o := &output{format: asTable}
	cmd.Flags().VarP(&o.format, "output", "o", "how to print it: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return o
}

// view is how the output shows an answer as text.
func (o *output) view(c *console) view.View {
	return view.View{Now: c.now(), WholeIDs: o.wholeIDs, AbsoluteTimes: o.absoluteTimes}
}

// print writes an answer to stdout, as text by what draw makes of it.
func (c *console) print(o *output, m any, draw func(view.View, *text.Page)) error {
	var b []byte
	var err error
	switch o.format {
	case asJSON:
		b, err = text.JSON(m)
	case asYAML:
		b, err = text.YAML(m)
	case asTable:
		p := &text.Page{Colours: c.colours()}
		draw(o.view(c), p)
		b = p.Take()
	}
	if err != nil {
		return err
	}
	return write(c.out, b)
}

// write writes to stdout. If nobody reads it any more the runtime has ended us by SIGPIPE, as any Unix program.
func write(w io.Writer, b []byte) error {
	if _, err := w.Write(b); err != nil {
		return &failure{code: exitFailed, err: fmt.Errorf("write to stdout: %w", err), hint: "what was printed is not whole"}
	}
	return nil
}
