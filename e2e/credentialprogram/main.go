// Command credentialprogram is a program that a kubeconfig runs for a token, in the manner of those of cloud providers:
// it asks a server for the token, keeps it in a file below its home directory, and prints it as an ExecCredential.
//
//	credentialprogram URL [--run-time-code] [--cache-dir DIR]
//
// With --run-time-code it needs memory that is writable and executable, as interpreters that compile do; with
// --cache-dir it keeps the token in a second file. The variable CREDENTIALPROGRAM has to be as in the kubeconfig.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/e2e/host"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "credentialprogram:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	defer host.Catch(&err)
	flags := flag.NewFlagSet("credentialprogram", flag.ExitOnError)
	code := flags.Bool("run-time-code", false, "map memory that is writable and executable")
	cache := flags.String("cache-dir", "", "keep the token there too")
	host.Check(flags.Parse(os.Args[2:]))

	var info struct{ APIVersion string }
	if err := json.Unmarshal([]byte(os.Getenv("KUBERNETES_EXEC_INFO")), &info); err != nil || info.APIVersion == "" {
		return fmt.Errorf("KUBERNETES_EXEC_INFO has no version: %w", err)
	}
	if got := os.Getenv("CREDENTIALPROGRAM"); got != "a \"b\" $HOME \\ `c`" {
		return fmt.Errorf("CREDENTIALPROGRAM is %q", got)
	}
	home := os.Getenv("HOME")
	if home == "" {
		return errors.New("HOME is not set")
	}
	if *code {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return fmt.Errorf("map memory for code: %w", err)
		}
	}
	resp, err := http.Get(os.Args[1])
	if err != nil {
		return err
	}
	token := host.Must(io.ReadAll(resp.Body))
	host.Check(resp.Body.Close())
	for _, dir := range []string{filepath.Join(home, ".kube", "cache"), *cache} {
		if dir != "" {
			host.Check(os.MkdirAll(dir, 0o700))
			host.Check(os.WriteFile(filepath.Join(dir, "credentialprogram"), token, 0o600))
		}
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"apiVersion": info.APIVersion, "kind": "ExecCredential", "status": map[string]string{"token": string(token)},
	})
}
