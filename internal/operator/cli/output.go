package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
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
	}
	return errors.New("allowed are table, json and yaml")
}

// An Output contains the flags about a command's output.
type Output struct {
	Format                  Format
	Stream                  bool // of answers: JSON is a line, and YAML begins with ---
	wholeIDs, absoluteTimes bool
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
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"},
		cobra.ShellCompDirectiveNoFileComp))
	return o
}

// Print writes an answer to stdout; draw makes the text.
func (c *Console) Print(o *Output, m any, draw func(*Page)) error {
	var b []byte
	var err error
	switch o.Format {
	case AsJSON:
		write := JSON
		if o.Stream {
			write = JSONLine
		}
		b, err = write(m)
	case AsYAML:
		if b, err = YAML(m); o.Stream {
			b = append([]byte("---\n"), b...)
		}
	case AsTable:
		p := c.page(c.OutTerminal, o)
		draw(p)
		b = p.Take()
	}
	if err != nil {
		return err
	}
	return c.Emit(b)
}

// ShowCommand makes cmd make a call and print its answer; then returns the error of the command.
func ShowCommand[R any](c *Console, cmd *cobra.Command, o *Output,
	call func(ctx context.Context, api adminv1.PullRecordsClient, args []string) (R, error), draw func(*Page, R),
	then ...func(R) error,
) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := call(ctx, api, args)
			if err == nil {
				err = c.Print(o, answer, func(p *Page) { draw(p, answer) })
			}
			if err != nil || len(then) == 0 {
				return err
			}
			return then[0](answer)
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

// Emit writes to stdout. If stdout is closed, SIGPIPE has ended the process, as for any Unix program.
func (c *Console) Emit(b []byte) error {
	if _, err := c.Out.Write(b); err != nil {
		return program.Hintf("the output is incomplete", "write to stdout: %w", err)
	}
	return nil
}

// JSON returns a message as JSON, over several lines, with field names in lowerCamelCase. The same message gives the
// same bytes. Empty lists, strings and numbers are written; absent messages and times are not. Values that are not
// protobuf messages are written as by encoding/json, but a map of fields is a message. Durations are numbers of
// seconds.
func JSON(m any) ([]byte, error) {
	line, err := JSONLine(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, line, "", "  "); err != nil {
		return nil, fmt.Errorf("indent %s: %w", name(m), err)
	}
	return b.Bytes(), nil
}

// JSONLine returns a message as one line of JSON, including the line feed.
func JSONLine(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	return []byte(escape(string(raw), "", pair) + "\n"), nil
}

// durationForm matches a duration in protojson, "took":"0.028s"; other text has an escaped quote there.
var durationForm = regexp.MustCompile(`"took":\s*"([0-9.]+)s"`)

func compact(m any) ([]byte, error) {
	var raw []byte
	var err error
	if fields, ok := m.(map[string]any); ok {
		if m, err = structpb.NewStruct(fields); err != nil {
			return nil, err
		}
	}
	if message, ok := m.(proto.Message); ok {
		raw, err = protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
		raw = durationForm.ReplaceAll(raw, []byte(`"took":$1`))
	} else {
		raw, err = json.Marshal(m)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", name(m), err)
	}
	// protojson varies its spaces on purpose; the output of a command should be stable.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("compact %s: %w", name(m), err)
	}
	return b.Bytes(), nil
}

func name(m any) string { return strings.TrimPrefix(fmt.Sprintf("%T", m), "*") }

// YAML returns the content of JSON as a YAML document, with the keys of each object in alphabetical order. A message
// with characters that are not printable is in the flow style, where these can be escaped.
func YAML(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	if !printable(string(raw)) {
		return []byte(Safe(string(raw)) + "\n"), nil // JSON with the escapes of YAML
	}
	b, err := yaml.JSONToYAML(raw)
	if err != nil {
		return nil, fmt.Errorf("write %s as YAML: %w", name(m), err)
	}
	return []byte(escape(string(b), "\n", whole)), nil
}

func pair(r rune) string {
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}

// Safe returns s with every character that is not printable as an escape of Go and JSON: \u001b, \U000e0001, and \xff
// for a byte that is not UTF-8. It escapes line feeds too.
func Safe(s string) string { return escape(s, "", whole) }

// escape is Safe, except that it keeps the characters in kept; long returns the escape of a character beyond U+FFFF.
func escape(s, kept string, long func(rune) string) string {
	if printable(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			_, _ = fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r), strings.ContainsRune(kept, r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(long(r))
		default:
			_, _ = fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

func whole(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
