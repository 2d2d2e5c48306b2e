package strictyaml

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// NameTaken is the error for a policy whose name another file has too; see Load.
const NameTaken = "metadata.name: Duplicate value: %q: also in %s; each policy needs its own name"

// A File is the content of a file. Its name is for errors.
type File struct {
	Name string
	Data []byte
}

// Load parses files in parallel, and returns their values in the same order: all of them or none. The error joins all
// errors, each with the name of its file and the line. A name of two values, unless it is "", is the error that taken
// formats with the name and the other file.
func Load[T any](files []File, parse func(File) (value T, name string, errs []error), taken string) ([]T, error) {
	all, names, invalid := make([]T, len(files)), make([]string, len(files)), make([][]error, len(files))
	var workers errgroup.Group
	workers.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		workers.Go(func() error {
			all[i], names[i], invalid[i] = parse(f)
			return nil
		})
	}
	_ = workers.Wait() // no worker fails
	var errs []error
	fileOf := map[string]string{}
	for i, f := range files {
		if other, ok := fileOf[names[i]]; ok && names[i] != "" {
			invalid[i] = append(invalid[i], fmt.Errorf(taken, names[i], other))
		}
		fileOf[names[i]] = f.Name
		for _, err := range WithLines(f.Data, invalid[i]) {
			errs = append(errs, fmt.Errorf("%s: %w", f.Name, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}
