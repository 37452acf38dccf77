"""Small applications that you can run; the tests run them too."""
