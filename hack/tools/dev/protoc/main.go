// Command protoc compiles a .proto file and has the Go plugins write their code.
// It stands in for the protoc of the protobuf project, so that generating code
// needs nothing but Go.
//
//	protoc -out DIR file.proto
//
// The generated files lie in DIR under the path of the .proto file (protoc calls
// this paths=source_relative). The plugins, protoc-gen-go and
// protoc-gen-go-grpc, are looked up beside this program and then in PATH.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("protoc: ")
	out := flag.String("out", ".", "directory the generated files are written to")
	root := flag.String("I", ".", "directory that imports and file names are relative to")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: protoc [-I DIR] [-out DIR] file.proto")
	}
	request, err := compile(*root, flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(plugin, request, *out); err != nil {
			log.Fatalf("%s: %v", plugin, err)
		}
	}
}

// compile parses file, with comments, and returns what plugins are asked to
// generate from it: the file itself, after everything that it imports.
func compile(root, file string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), file)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String("paths=source_relative"),
	}
	request.ProtoFile = withImports(files[0], map[string]bool{}, nil)
	return request, nil
}

// withImports appends the descriptor of file to list, after those of its imports.
func withImports(file protoreflect.FileDescriptor, seen map[string]bool, list []*descriptorpb.FileDescriptorProto) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	for i := range file.Imports().Len() {
		list = withImports(file.Imports().Get(i).FileDescriptor, seen, list)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

// run hands request to a plugin and writes the files that it answers with.
func run(plugin string, request *pluginpb.CodeGeneratorRequest, out string) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command(find(plugin))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output, response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, file := range response.File {
		target := filepath.Join(out, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// find prefers the plugin that was built together with this program.
func find(plugin string) string {
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), plugin); isFile(beside) {
			return beside
		}
	}
	return plugin
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
